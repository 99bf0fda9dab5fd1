"""Text worlds as gymnasium environments, registered under ``zoo/<Name>-v0``."""

import gymnasium

for _name, _module in {
    "ALFWorld": "alfworld",
    "ClueLock": "clue_lock",
    "FactHunt": "fact_hunt",
    "Household": "household",
    "PageHunt": "page_hunt",
    "TextWorldExpress": "textworld_express",
}.items():
    if f"zoo/{_name}-v0" not in gymnasium.registry:
        gymnasium.register(f"zoo/{_name}-v0", entry_point=f"datamodules.environments.{_module}:{_name}")
