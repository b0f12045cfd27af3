"""The server shown at work: one completion with its figures, or a server to try.

`command`     the command line, and the server's life around it
`comparison`  one prompt decoded with CARD and plainly
`requests`    what is asked, within the limits of the settings
`gateway`     OpenAI's interface beside the server
"""
