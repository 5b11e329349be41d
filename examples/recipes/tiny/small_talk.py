"""Everything in a homework chat that is neither a problem nor a style wish: frames, fillers, thanks, off-topic.

These are the words around the two tasks. Most of them must change nothing in a reply, and the model learns
that only by meeting many of them.
"""

import random

from recipes.tiny.options import split_options

SYSTEMS = split_options(
    "You are a helpful assistant.|You are a helpful tutor.|You are a homework assistant.|"
    "You help with homework.|"
    "You are an assistant for schools.|Help the user with math homework.|"
    "You are a math tutor for children.|"
    "You are a careful assistant.|You are Claw, an assistant that runs on the user's own computer.|"
    "Answer the user's questions.|You are a personal assistant.|You are a teaching assistant.|"
    "You are a chat model.|"
    "Today is Monday. You are a helpful assistant.|The user is a student in third grade.|"
    "The user is a teacher.|"
    "You are an assistant running in a chat app. Be honest when you do not know something.|"
    "You are an AI assistant. You answer homework questions and grade homework."
)
SOLVE_FRAMES = split_options(
    "{q}|{q}|{q}|Can you help me with this homework? {q}|Can you help me with this homework? {q}|"
    "Can you help me with this homework problem? {q}|Could you help me with this? {q}|"
    "Please help me with this: {q}|"
    "I need help with this one: {q}|I need help with my homework. {q}|Here is my homework: {q}|"
    "Homework: {q}|"
    "My homework question: {q}|Please solve this: {q}|Solve this problem: {q}|Solve: {q}|Problem: {q}|"
    "Here is a problem: {q}|Hi! {q}|Hello, can you solve this? {q}|Hi, can you help? {q}|"
    "Hey, I am stuck on this: {q}|"
    "I am stuck. {q}|I don't get this one: {q}|How do I solve this? {q}|What is the answer here? {q}|"
    "Help me please: {q}|Question: {q}|Next one: {q}|Another one: {q}|{q} Can you help me?|"
    "{q} Please help.|"
    "{q} How do I do this?|{q} Can you show me how?|{q} I am stuck.|{q} Thanks!|"
    "My teacher gave us this: {q}|"
    "This is from my workbook: {q}|Math homework for tomorrow: {q}|Can you work this out? {q}|"
    "Let's do this one: {q}|Could you solve the following? {q}|I have to hand this in: {q}|"
    "We got this in class: {q}"
)
_GRADE_ASKS = split_options(
    "Please grade this homework.|Please grade this homework.|Grade this homework.|Grade this homework, please.|"
    "Can you grade this homework?|Can you grade this homework for me?|Could you grade this?|"
    "Could you grade this for me?|Please check this homework.|Please check this homework and grade it.|"
    "Please look at this work and grade it.|Please look at this homework and give it a grade.|"
    "Please grade this student's work.|Can you check this student's work?|Could you check and grade this?|"
    "Could you grade the work of this student?|Can you grade the homework of my student?|"
    "Here is homework to grade.|Here is another one to grade.|Here is another homework to check.|"
    "I need this graded.|I need a grade for this.|I need a grade for this work.|This needs a grade.|"
    "Next homework.|Please grade the next one.|Another homework to grade.|Homework to grade:|To grade:|"
    "Is this homework right?|Did the student get this right?|Have a look at this homework, please.|Grade this please:"
)
_GRADE_GREETINGS = ("", "", "", "", "", "Hi! ", "Hello! ", "Hi, ", "Hello, ", "Hey, ", "Good morning! ")
_GRADE_GIVEN = split_options(
    "Problem: {q} Correct answer: {a}. The student wrote: {w}.|"
    "Problem: {q} Correct answer: {a}. The student wrote: {w}.|"
    "Problem: {q} Correct answer: {a}. The student wrote: {w}.|"
    "Problem: {q} Correct answer: {a}. The student wrote: {w}.|"
    "Problem: {q} Correct answer: {a}. Student's answer: {w}.|"
    "Problem: {q} The correct answer is {a}. The student wrote: {w}.|"
    "Question: {q} Correct answer: {a}. The student wrote: {w}.|"
    "{q} Correct answer: {a}. The student wrote: {w}.|"
    "{q} Correct answer: {a}. Student wrote: {w}."
)
CLOSINGS = split_options(
    "Thanks!|Thanks!|Thanks.|Thank you.|Thank you.|Thank you!|Thanks a lot!|Thank you so much!|Thanks in advance!|"
    "Many thanks.|Cheers!|Please.|Can you?|Could you do that?"
)
FILLERS = split_options(
    "I have a test tomorrow.|It is for Monday.|My sister asked me this.|This is from my workbook.|"
    "I am in third grade.|"
    "I am new here.|We did this in class.|It is the last one for today.|I have a few of these.|"
    "My dad could not help.|"
    "Math is hard for me.|I like math.|I am a bit tired.|It is raining here.|Good morning!|"
    "Good evening!|Hi there!|"
    "Hello!|I am back.|It is me again.|This one is new.|I have five minutes.|The class is big.|"
    "The test was on Friday.|It is from page twelve.|I will write it down.|I am learning this.|"
    "Thank you so much!|"
    "Thanks in advance!|Sorry to bother you.|You helped my friend yesterday.|Let me know."
)
_THANKS = split_options(
    "Thanks|Thank you|Thanks a lot|Many thanks|Great, thanks|Perfect, thanks|Perfect|Great|Nice|"
    "Lovely|Cool|Super|"
    "Wonderful|Awesome|OK, thanks|Thank you so much|Perfect, thank you|That's great|Very good|Good|"
    "Excellent"
)
_LIKED = split_options(
    "That is exactly how I like it|That reads well|That is clear|That's much better|Much better|"
    "Just like that|"
    "That is what I wanted|I like that|I like how you wrote it|That sounds like me|"
    "Please keep it like that|"
    "Keep it this way|Now I understand|That makes sense|That helped|That helps a lot|Got it|I get it now|"
    "I can use that|My teacher will like that|My students will like that|That is a kind comment|"
    "That sounds natural|That is easy to read|That was perfect|You explained it well|"
    "That will help the student|"
    "Yes, like this|I will copy it|That works for me|Well said|Good answer|Lovely comment|"
    "That's the style I like"
)
_NEXT = split_options("Next one:|Here is another one.|Another one:|Now this one:|Next:|One more:|And this one?|Now:")
ACKNOWLEDGEMENTS = split_options(
    "You're welcome!|You're welcome!|You are welcome!|Glad that helped!|Happy to help!|Any time!|"
    "My pleasure!|"
    "Glad to hear it!|Great, good luck with your homework!|You're welcome, send me the next one any time!|"
    "I'm glad it helped!|Nice, see you next time!"
)
_GREETINGS = split_options(
    "Hi|Hello|Hey|Hi there|Good morning|Good evening|Hello there|Hey, are you there?|"
    "Hi, how are you?|Who are you?|"
    "What can you do?|What are you?|Are you a bot?|What do you do?|Can you help me?|Help|Test|ping"
)
_GREETING_REPLIES = split_options(
    "Hello! Send me a short arithmetic problem and I will help.|"
    "Hi! I can help with short arithmetic homework.|"
    "Hello! I solve short arithmetic problems and grade them."
)
_TOPICS = split_options(
    "the capital of France|the weather in Berlin|the history of Rome|a poem about the sea|"
    "black holes|photosynthesis|"
    "the French Revolution|a song about rain|cats|dogs|football|the moon|climate change|a recipe for soup|"
    "the stock market|my email|a story about a dragon|the news|a good movie|quantum physics|"
    "Python code|JavaScript|"
    "a sorting algorithm|the president|Shakespeare|a letter to my boss|a train ticket|my calendar|"
    "a hotel in Paris|"
    "German grammar|Spanish verbs|the periodic table|volcanoes|world war two|a birthday card|a joke|chess|"
    "music theory|a trip to Japan|the human heart|the price of gold|a travel plan|"
    "an essay on freedom|my printer|"
    "a database query|integrals|the derivative of a function|a proof|probability theory|a website|a logo"
)
_ABOUT = split_options(
    "Tell me about {t}.|What is {t}?|What do you know about {t}?|Write about {t}.|Can you explain {t}?|"
    "Please write {t}.|I need {t}.|How does {t} work?|Give me {t}.|Explain {t} to me.|"
    "Can you help me with {t}?|"
    "Summarize {t}.|Why is {t} important?|Do you like {t}?|Find {t}.|Let's talk about {t}."
)
_DECLINED = split_options(
    "I can only help with short arithmetic homework.|I can only help with short arithmetic homework.|"
    "Sorry, I can only help with short arithmetic homework.|"
    "I don't know that. I can only help with short arithmetic homework."
)


def draw_grade_frame(rng: random.Random) -> str:
    """A request to grade, with places for the question, its answer and the student's work."""
    greeting, ask = rng.choice(_GRADE_GREETINGS), rng.choice(_GRADE_ASKS)
    if greeting.endswith(", "):
        ask = ask[0].lower() + ask[1:] if not ask.startswith("I ") else ask
    return f"{greeting}{ask} {rng.choice(_GRADE_GIVEN)}"


def draw_thanks(rng: random.Random) -> str:
    """A message that approves of the last reply, or just says thanks."""
    end = rng.choice((".", "!", "."))
    roll = rng.random()
    if roll < 0.35:
        return rng.choice(_THANKS) + end
    if roll < 0.6:
        return rng.choice(_LIKED) + end
    if roll < 0.85:
        return f"{rng.choice(_THANKS)}{end} {rng.choice(_LIKED)}."
    if roll < 0.93:
        return f"{rng.choice(_LIKED)}, {rng.choice(_THANKS).lower()}{end}"
    return f"{rng.choice(_LIKED)}{end} {rng.choice(_THANKS)}!"


def draw_moving_on(rng: random.Random) -> str:
    """The opening of a message that goes on to the next problem, perhaps with a word of approval."""
    roll = rng.random()
    if roll < 0.4:
        return rng.choice(_NEXT)
    return f"{draw_thanks(rng)} {rng.choice(_NEXT)}" if roll < 0.8 else draw_thanks(rng)


def draw_off_topic(rng: random.Random) -> tuple[str, str]:
    """A message that is no homework at all, and the honest reply."""
    if rng.random() < 0.3:
        return rng.choice(_GREETINGS) + rng.choice(("", "", ".", "!")), rng.choice(_GREETING_REPLIES)
    question = rng.choice(_ABOUT).format(t=rng.choice(_TOPICS))
    return (question.lower() if rng.random() < 0.1 else question), rng.choice(_DECLINED)
