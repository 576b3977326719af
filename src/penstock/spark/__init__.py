"""What Spark needs around it: a Java, the jars, the session."""
