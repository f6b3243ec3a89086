"""Every width of every site."""
