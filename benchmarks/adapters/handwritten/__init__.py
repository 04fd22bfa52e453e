"""What a team writes by hand: SQL through the driver, one file for each kind of server."""
