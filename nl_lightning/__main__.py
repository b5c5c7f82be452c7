from nl_lightning.cli.main import main

if __name__ == "__main__":
    main()
