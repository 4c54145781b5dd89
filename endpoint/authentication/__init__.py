"""Authentication of clients on SASL listeners: the gate, its state machine, and a module for each mechanism."""
