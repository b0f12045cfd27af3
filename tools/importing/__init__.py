"""Looks at a draft and a target before they are served together.

`checks`         what CARD needs of two Hugging Face directories
`settings_file`  the settings that follow
`measuring`      agreement and costs of passes, where our own engines can run the pair here
`agreement`      how often the draft would pick the token that the target wrote
`heads`          the same of a head that reads the target's hidden states
`prediction`     the speed-up that the planner's arithmetic makes of them
`command`        the command line
"""
