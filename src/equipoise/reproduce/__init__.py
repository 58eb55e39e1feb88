"""The main claims of five papers, each as a small experiment with an expected range."""
