"""The GUI environment (`env.GUIEnv`): tasks on a web page or in a native window, with a mouse and a keyboard.

`screen.Screen` is what it needs of a screen, whoever draws it: Playwright (`browser`), Selenium
(`browser_selenium`) or an X server (`x11`).
"""
