"""What the theory names, at work: the NTK and effective dimensions, tail inequalities, confidence sets."""
