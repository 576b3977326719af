"""`penstock submit`: everything that another machine needs to start a driver."""
