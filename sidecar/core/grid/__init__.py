"""What is declared, and what of it can be sent: shapes, cells, the plan."""
