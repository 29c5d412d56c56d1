"""How many workers a load needs: queues, the operating point, the demand of this moment, the targets of pools."""
