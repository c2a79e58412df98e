"""How commands speak to people: errors, tables, JSON."""
