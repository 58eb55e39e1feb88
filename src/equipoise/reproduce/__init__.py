"""The main claims of the five papers, each as a small experiment with an expected range. See `equipoise reproduce --list`."""
