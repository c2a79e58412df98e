"""What `plan` decides with: cutting chunks, grouping tasks, forecasting time, the device's facts."""
