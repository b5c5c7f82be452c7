"""The theory's quantities in numbers: the NTK and effective dimensions, tail inequalities, confidence sets."""
