"""How commands speak to people: errors, tables, units."""
