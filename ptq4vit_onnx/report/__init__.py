"""What an export measured: a typed value, turned into JSON, a terminal table and an HTML page.

data           the Report and its JSON
terminal       the table that `export` prints
page           report.html, from the jinja2 templates in templates/
rows           what the page knows of each site
table          the pages' tables, and quantizers in words
twin_words     what `--twin auto` chose at each site, in words
float_words    which products stay in float, in words
budget_section how a budget was spent, and the bits of every weight
site_charts    its charts of all sites and of each site
charts         histograms and search curves as SVG
size_chart     size against distance as SVG
chart_labels   names beside a chart's marks
pareto_rows    files that `pareto` compared, as rows, CSV and table
pareto_page    their page and picture
"""

DOORS = ("data", "page", "pareto_page", "pareto_rows", "terminal")  # what other rooms may import
