"""Events from Kafka into a lakehouse through Spark: none lost, none twice, fast, and visible."""
