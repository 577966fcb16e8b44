"""Tables as people have them: text, numbers and dates side by side, values missing, one file a client or one in all."""
