"""Writes default_text.txt, the tales that `gpt` learns from without a file: plain sentences that small models learn soon."""

import random
from pathlib import Path

ANIMALS = ["fox", "bear", "hare", "crow", "mouse", "goat", "wolf", "frog", "hen", "duck", "cat", "dog", "owl", "pig", "deer"]
PLACES = ["the river", "the old mill", "the hill", "the green wood", "the stone bridge", "the market", "the lake", "the village"]
FOODS = ["a loaf of bread", "a red apple", "a piece of cheese", "a pot of honey", "a basket of nuts", "a bowl of soup"]
THINGS = ["a lamp", "a drum", "a red coat", "a silver bell", "a blue boat", "a small clock", "a wooden spoon", "a warm hat"]
TIMES = ["One morning", "One evening", "One day in spring", "One day in winter", "Early one day", "When the sun came up"]
WEATHER = ["It was raining.", "The sun was shining.", "The wind was cold.", "It was a warm day.", "Snow lay on the ground."]
ENDS = [
    "And so they were friends.",
    "And from that day on they shared all they had.",
    "Then they went home, and the night was quiet.",
    "And if they have not moved away, they live there still.",
    "That was a good day.",
]

# A is one animal and B another, C a third; P and Q are places, F is something to eat, T a thing.
TALES = [
    """The A and the B

$WHEN the A went to P. $WEATHER On the way the A met the B. "Good day," said the A. "Where are you going?" "I am going to Q," said the B. "I want to buy F." "Then let us go together," said the A, "for two are better than one." So they went to Q together. There they bought F, and they ate it under a tree. $END""",
    """The A Who Lost T

The A had T. It was the best thing that the A had. $WHEN it was gone. The A looked under the bed. It was not there. The A looked behind the door. It was not there. Then the A went to the B. "Have you seen it?" asked the A. "No," said the B, "but I will help you to look." They looked at P, and it was not there. They looked at Q, and there it was. "Thank you," said the A. "You are kind." And the B was glad. $END""",
    """The Hungry B

The B was hungry. There was nothing to eat in the house. So the B went to the A and said, "I am hungry. Have you something to eat?" "I have only F," said the A, "but half of it is yours." They sat down and ate. $WEATHER After a while the C came by. "I am hungry too," said the C. "Then sit down with us," said the A, "for there is enough for three." And there was enough for three. $END""",
    """Three at P

The A, the B and the C lived near P. The A was big, the B was small, and the C was old. $WHEN they wanted to cross the water, but there was no bridge. "I am big," said the A. "I will carry the stones." "I am small," said the B. "I will look for the way." "I am old," said the C. "I will tell you how my mother did it." So they made a bridge of stones, and it stands there still. $END""",
    """The A and the Moon

In the night the A looked at the moon. "How far is it to the moon?" asked the A. "It is very far," said the B. "Is it farther than Q?" "It is farther than Q." "Is it farther than P?" "It is farther than P, and farther than all the roads." "Then I will stay at home," said the A, "and look at it from here." And the moon looked down on the A and on the B. $END""",
    """The Proud A

There was once an A that was proud. "I am faster than the B," said the A, "and I am stronger than the C." "That may be so," said the B. "Let us run to P, and we will see." They ran. The A ran fast, but the A looked back all the time. So the A did not see the stone, and fell. The B came by and stopped. "Are you hurt?" asked the B. "Only a little," said the A. "You could have won," said the A. "I know," said the B, "but then you would be lying here alone." $END""",
    """The Gift

$WHEN the A said, "Tomorrow is the birthday of the B. What shall I give?" The A went to Q and saw T. "What does it cost?" asked the A. "It costs ten coins," said the C. But the A had only five. "Then give me five today and five in spring," said the C. So the A took T and carried it home. The next day the A knocked on the door of the B. "This is for you," said the A. The B was so glad that it could not say a word. $END""",
    """The Long Winter

It was winter, and the winter was long. The B had no wood, and the fire was out. The wind was cold. The A saw that no smoke came from the house of the B. "Something is wrong," said the A, and took some wood and F, and went through the snow. "Come in," said the B. "I am cold, and I am alone." Soon the fire was burning, and soon they were eating. "Stay until spring," said the B. And the A stayed until spring. $END""",
    """The A That Could Not Sleep

The A could not sleep. First the A counted sheep. There was one sheep, there were two sheep, there were three sheep. But the A could not sleep. Then the A went to P and listened to the wind. But the A could not sleep. Then the A went to the B. "Tell me a tale," said the A. "Once there was a C," said the B, "that had T," and the A was asleep. $END""",
    """Who Ate It?

The A had F on the table. $WHEN it was gone. "Who ate it?" asked the A. "It was not I," said the B. "It was not I," said the C. The A looked at the B, and the A looked at the C. There was a crumb on the nose of the C. "What is that on your nose?" asked the A. Then the C was ashamed. "It was I," said the C. "I was hungry, and I did not ask." "Next time ask," said the A, "and I will give you some." $END""",
    """The Road to Q

"Which road goes to Q?" asked the A. "The left one," said the B. "The right one," said the C. The A took the left one and came to P. $WEATHER The A went back and took the right one and came to P. "Both roads go to P," said the A. "Yes," said the B, "and from there it is not far." So they all went together, and they sang on the way. They sang of F, and they sang of T, and before they knew it they were there. $END""",
    """The Wise C

The A and the B found T on the road. "I saw it first," said the A. "I picked it up," said the B. So they went to the C, who was old and wise. "Give it to me," said the C, "and come back in a week." In that week the A had nothing to do and was alone, and the B had nothing to do and was alone. When they came back the C asked, "Whose is it?" "It is the B's," said the A. "It is the A's," said the B. "Good," said the C. "Then it belongs to you both." $END""",
    """The Garden

In spring the A and the B made a garden near P. The A dug the earth, and the B put in the seeds. "When will something grow?" asked the A. "Wait," said the B. They waited a day, and nothing grew. They waited a week, and nothing grew. $WEATHER Then came the rain, and then came the sun, and then there was a green leaf, and then there were ten. In autumn they had so much that they gave some to the C, and took the rest to Q. $END""",
    """The Boat

The A built a boat. It was a small boat, and it was a good boat. "Who will come with me?" asked the A. "I am afraid of the water," said the B. "I am afraid of the wind," said the C. "Then I will go alone," said the A, and went. But the water was wide, and the A was lonely, and turned back. "We will come with you after all," said the B and the C, "for we were more afraid without you." So they went together, and had F with them. $END""",
]


def tale(draw: random.Random, text: str) -> str:
    """One tale, with animals, places and things of its own."""
    first, second, third = draw.sample(ANIMALS, 3)
    here, there = draw.sample(PLACES, 2)
    for word, choice in [("$WHEN", TIMES), ("$WEATHER", WEATHER), ("$END", ENDS)]:
        text = text.replace(word, draw.choice(choice))
    slots = {"A": first, "B": second, "C": third, "P": here, "Q": there, "F": draw.choice(FOODS), "T": draw.choice(THINGS)}
    title, body = text.split("\n", 1)
    words = lambda line, of: " ".join(put(word, of) for word in line.split(" "))  # noqa: E731
    body = words(body, slots)
    return words(title, {k: v.title().replace("A ", "a ").replace("Of", "of").replace("The ", "the ") for k, v in slots.items()}) + "\n" + body


def put(word: str, slots: dict[str, str]) -> str:
    """A word in which a letter that stands for something is replaced by it."""
    bare = word.strip('".,?!\n')
    letter = bare.removesuffix("'s")
    if letter in slots and not (letter == "A" and word.startswith('"')):
        return word.replace(letter, slots[letter], 1)
    return word


def main() -> None:
    draw = random.Random(1)
    tales = []
    while sum(map(len, tales)) < 44_000:
        tales += [tale(draw, text) for text in draw.sample(TALES, len(TALES))]
    text = "\n\n".join(tales) + "\n"
    for vowel in "aeiou":
        text = text.replace(f" a {vowel}", f" an {vowel}").replace(f" A {vowel.upper()}", f" An {vowel.upper()}")
    for consonant in "bcdfghjklmnpqrstvwxyz":
        text = text.replace(f" an {consonant}", f" a {consonant}")
    Path(__file__).with_suffix(".txt").write_text(text)


if __name__ == "__main__":
    main()
