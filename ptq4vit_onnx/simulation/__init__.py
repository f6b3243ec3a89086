"""The plan on the torch model: fake-quantised, or in exact integers rounded as the file rounds."""
