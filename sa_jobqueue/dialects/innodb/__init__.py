"""MySQL and MariaDB: what their InnoDB tables can do."""
