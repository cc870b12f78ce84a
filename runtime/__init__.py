"""What serving code imports: validated reads over generated state classes."""
