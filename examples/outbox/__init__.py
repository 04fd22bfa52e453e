"""Messages to brokers: the rows of an outbox table, published in order for each key."""
