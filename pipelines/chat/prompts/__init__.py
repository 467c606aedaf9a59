"""What a chat template wants, found out by rendering it, and a conversation in the form that it takes."""
