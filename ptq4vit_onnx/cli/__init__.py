"""The command line: parses arguments, prints, and returns exit codes. No other room prints."""
