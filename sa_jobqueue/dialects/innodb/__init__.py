"""MySQL and MariaDB: what they share because of InnoDB, and how they differ."""
