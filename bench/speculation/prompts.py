"""Prompts whose answers repeat the prompt, and prompts whose answers do not. Written for this benchmark."""

from __future__ import annotations

_TASK = (
    "Summarise the text below in one sentence. Then quote, word for word, the sentences that support your summary.\n\n"
)

_TEXTS = (
    "The harbour of Aldermouth froze over in the first week of January. Fishing boats that left on Sunday could not "
    "return until Thursday, when an icebreaker from the mainland opened a channel forty metres wide. The fish market "
    "stayed closed for five days. Restaurants along the quay served mussels from their freezers and potatoes from the "
    "inland farms. On Friday the first trawler landed nine tonnes of herring, and the queue in front of the market "
    "reached the lighthouse. The mayor thanked the crew of the icebreaker with a dinner in the town hall. Engineers "
    "propose to keep a tug with a strengthened bow in the harbour from December to March.",
    "Minutes of the garden committee, 4 May. Present: Ilse Brandt, Tom Okafor, Wen Li. The committee agreed to plant "
    "twelve apple trees along the north wall. Tom Okafor will order the trees before the end of the month. Wen Li "
    "reported that the rainwater tank leaks at the lower seam and loses about thirty litres a day. Ilse Brandt will "
    "ask two companies for an offer to repair the tank. The committee decided against a second compost heap because "
    "the neighbours complained about the first. The next meeting is on 8 June at six in the evening in the tool shed.",
    "The reading room opens at nine in the morning and closes at seven in the evening. Readers leave coats and bags in "
    "the lockers beside the entrance. Pencils are allowed at the desks; pens, food and drinks are not. Each reader may "
    "have three volumes at a time and must return them to the counter before leaving. Manuscripts from before 1800 are "
    "shown only on Tuesdays and Wednesdays, when a conservator is present. Photographs without a flash are free of "
    "charge. A copy made by the library costs forty cents a page and is ready on the next working day.",
    "A team of six surveyors walked the whole length of the Maren valley last summer to count its springs. They found "
    "two hundred and eleven springs, of which sixty had never been marked on a map. Most of the new ones lie in the "
    "limestone above the village of Torre, where the water disappears underground after a few metres. Thirty-four "
    "springs that appear on the map of 1952 have dried up. The surveyors measured temperature and flow at every spring "
    "and will repeat the count every five years. The data are free for anyone to use and are kept by the regional "
    "water office.",
    "Version 3.2 of the scheduling tool changes how shifts are exchanged. A member of staff who wants to give away a "
    "shift now offers it to the whole team instead of to one person. The first colleague who accepts gets the shift, "
    "unless that would leave less than eleven hours of rest between two shifts. The manager is informed but does not "
    "have to approve the exchange. Shifts on public holidays cannot be exchanged in this version. The old function "
    "stays available until the end of September. Questions go to the help desk, which is staffed from seven to four.",
    "The bridge over the river Lenn was closed to lorries on Monday after an inspection found cracks in two of its "
    "eight main girders. Cars may still cross at a speed of thirty kilometres per hour. The repair will take about ten "
    "weeks and cost 2.4 million, most of it for the scaffolding. Lorries have to use the motorway bridge at Hallstett, "
    "a detour of twenty-three kilometres. Two bus lines end at the bridge, and passengers walk across to a second bus. "
    "The engineers say that the cracks come from salt water that entered through a broken drain.",
    "To descale the machine, empty the tank and fill it with one litre of water and one sachet of the cleaning powder. "
    "Place a bowl that holds at least one litre under the outlet. Press the left and the right button together for "
    "three seconds until the light turns orange. The machine pumps the liquid in six intervals and then stops. Rinse "
    "the tank, fill it with fresh water and press the left button once. When the light turns white the machine is "
    "ready. Repeat this after every two hundred cups, or every three months if the water in your town is hard.",
    "The night train from Castelo to the coast will run again from the tenth of October after a break of eight years. "
    "It leaves Castelo at 22.15 and arrives at Porto Alvo at 6.50 on the next morning. There are four sleeping cars, "
    "two cars with seats and a car for bicycles. A bed in a compartment for four costs thirty-nine, a seat nineteen. "
    "Breakfast is included with every bed. The railway expects one hundred and twenty thousand passengers in the first "
    "year. If fewer than eighty thousand travel, the train will be withdrawn in the following autumn.",
)

QUOTE = tuple(_TASK + text for text in _TEXTS)
"""Answers that say much of the prompt again."""

OPEN = (
    "Write a short story about a clockmaker who loses her sense of time.",
    "Explain to a child why the sky is dark at night.",
    "Describe a market in a desert town at dawn.",
    "Give advice to someone who moves to a city where they know nobody.",
    "Write a letter from a lighthouse keeper to his sister.",
    "Describe how bread changed from ancient times until today.",
    "Invent an animal that lives in the clouds and describe it.",
    "Tell me what a day on a small fishing boat is like.",
)
"""Answers that say little twice."""
