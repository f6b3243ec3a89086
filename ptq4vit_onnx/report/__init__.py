"""What an export measured: a typed value, turned into JSON, a terminal table and an HTML page.

data.Report is the value, its `to_data()` what report.json holds; terminal.rows makes the table that `export` prints,
page.render the page, from the jinja2 templates in templates/.
"""
