"""What a team writes by hand: SQL through the driver, a file for each kind of database."""
