"""The pages of docs/reference that come from the code.

Each module writes one page from the declarations that the program itself uses.
"""
