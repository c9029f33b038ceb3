"""The ground floor: devices, capabilities, configuration, the report, CI scripts."""
