"""The GUI environment (`env.GUIEnv`): tasks on a web page or in a native window, with a mouse and a keyboard.

Other packages use `env`, `tasks` (web tasks), `miniwob_tasks`, `x11_tasks`, `oracle` (plays a task's solution) and
`filmstrip` (an episode as a picture). Within the package, `screen.Screen` is what the environment needs of a screen;
Playwright (`browser`), Selenium (`browser_selenium`) and an X server (`x11`) implement it.
"""
