"""What an export measured: a typed value, turned into JSON, a terminal table and an HTML page."""
