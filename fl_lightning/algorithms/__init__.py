"""The named algorithms: callbacks for the Trainer."""
