"""German and Spanish wordings of a student who asks in English and reacts as it comes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Phrases:
    """Reactions in one language.

    Attributes:
        objections (`Mapping[str, Sequence[str]]`): By fault of the style; `any` is about the style as a whole.
        missing (`Sequence[str]`): Objections to a reply that shows no steps.
        keep (`Sequence[str]`): What follows an objection to the form: the steps should stay.
        again (`Sequence[str]`): What comes before the second objection of a conversation.
        approvals (`Sequence[str]`): Approvals.
    """

    objections: Mapping[str, Sequence[str]]
    missing: Sequence[str]
    keep: Sequence[str]
    again: Sequence[str]
    approvals: Sequence[str]


GERMAN = Phrases(
    objections={
        "any": (
            "Das sieht aus, als hätte es eine Maschine geschrieben. Schreib es bitte wie ein Mensch.",
            "So kann ich das nicht abgeben, das klingt nach Chatbot.",
            "Bitte einfach in normalen Sätzen.",
            "Kannst du das als Fließtext schreiben?",
            "Zu viel Formatierung, schreib es bitte ganz schlicht.",
            "Ohne Markdown bitte.",
            "Geht das auch ohne die ganze Formatierung?",
            "Mein Lehrer merkt sofort, dass das von einer KI ist. Bitte schreib ganz normal.",
            "Ich hätte es lieber als normalen Text.",
            "Schreib das bitte nochmal, aber ohne den ganzen Schnickschnack.",
        ),
        "bold": (
            "Bitte ohne Fettdruck.",
            "Kannst du das Fettgedruckte weglassen?",
            "Lass bitte die Sternchen weg.",
            "Die fetten Wörter stören mich.",
            "Nichts fett schreiben, bitte.",
            "Warum ist da so viel fett? Schreib es bitte normal.",
        ),
        "list": (
            "Keine Liste bitte, lieber ein Absatz.",
            "Kannst du aus der Liste normale Sätze machen?",
            "Bitte nicht als Aufzählung.",
            "Ich möchte keine Liste, sondern einen Text.",
        ),
        "step_label": (
            "Bitte schreib nicht vor jeden Satz, der wievielte Schritt das ist.",
            "Nicht in nummerierte Schritte aufteilen, bitte.",
            "Lass die Schrittnummern weg und schreib einen Absatz.",
        ),
        "heading": (
            "Ohne Überschriften bitte.",
            "Die Überschriften können weg.",
            "Bitte keine Titel, einfach nur Text.",
        ),
        "answer_label": (
            "Schreib das Ergebnis bitte in einem normalen Satz.",
            "Die Antwortzeile am Ende klingt komisch, mach da bitte einen Satz draus.",
            "Das Ergebnis bitte nicht so extra hinsetzen, sondern in den Text.",
        ),
        "code": (
            "Keine Kästen und Formelzeichen, bitte nur Sätze.",
            "Kannst du das ohne Sonderzeichen schreiben?",
        ),
    },
    missing=(
        "Da fehlen die Rechenschritte.",
        "Wie kommst du darauf? Bitte mit Rechenweg.",
        "Ich brauche auch den Rechenweg, nicht nur das Ergebnis.",
        "Das ist zu kurz, schreib bitte die Schritte dazu.",
        "Kannst du den Rechenweg in Sätzen dazuschreiben?",
    ),
    keep=(
        "Die Rechenschritte aber bitte drinlassen.",
        "Den Rechenweg brauche ich trotzdem.",
        "Die Schritte sollen bleiben.",
        "",
        "",
    ),
    again=(
        "",
        "",
        "Immer noch nicht so, wie ich es meinte.",
        "Das ist es noch nicht ganz.",
        "Bitte nochmal.",
        "Fast.",
    ),
    approvals=(
        "Super, genau so!",
        "Perfekt, danke!",
        "Danke, das passt so.",
        "Sehr gut, das verstehe ich.",
        "Ja, so ist es gut.",
        "Klasse, so würde ich das auch schreiben.",
        "Toll, vielen Dank!",
        "Prima, das gebe ich so ab.",
        "Danke dir!",
        "Viel besser so.",
        "Wunderbar, jetzt hab ich's verstanden.",
        "Top, danke.",
        "Genau so wollte ich es haben.",
        "Schön erklärt, danke.",
    ),
)

SPANISH = Phrases(
    objections={
        "any": (
            "Parece escrito por una máquina, escríbelo como una persona, por favor.",
            "Así no lo puedo entregar, suena a chatbot.",
            "Mejor en frases normales, por favor.",
            "¿Puedes escribirlo como texto corrido?",
            "Demasiado formato, ponlo más sencillo.",
            "Sin Markdown, por favor.",
            "¿Se puede sin tanto formato?",
            "Mi profe va a notar que es de una IA. Escríbelo normal, por favor.",
            "Lo prefiero como texto normal.",
            "Escríbelo otra vez, pero sin tanto adorno.",
        ),
        "bold": (
            "Sin negritas, por favor.",
            "¿Puedes quitar las negritas?",
            "Quita los asteriscos, por favor.",
            "Me molestan las palabras en negrita.",
            "No pongas nada en negrita.",
            "¿Por qué hay tanta negrita? Escríbelo normal.",
        ),
        "list": (
            "Sin listas, mejor un párrafo.",
            "¿Puedes convertir la lista en frases?",
            "No lo pongas como lista, por favor.",
            "No quiero una lista, quiero un texto.",
        ),
        "step_label": (
            "No hace falta poner el número de cada paso.",
            "No lo dividas en pasos numerados, por favor.",
            "Quita los números de los pasos y haz un solo párrafo.",
        ),
        "heading": (
            "Sin títulos, por favor.",
            "Los títulos sobran.",
            "No pongas encabezados, solo texto.",
        ),
        "answer_label": (
            "Di el resultado en una frase normal, por favor.",
            "La línea de la respuesta al final queda rara, ponla como una frase.",
            "El resultado no lo pongas aparte, mételo en el texto.",
        ),
        "code": (
            "Sin cuadros ni símbolos raros, solo frases.",
            "¿Puedes escribirlo sin símbolos raros?",
        ),
    },
    missing=(
        "Faltan los pasos.",
        "¿Cómo llegas a eso? Pon el cálculo, por favor.",
        "Necesito también el procedimiento, no solo el resultado.",
        "Es demasiado corto, añade los pasos.",
        "¿Puedes explicar el cálculo con frases?",
    ),
    keep=(
        "Pero deja los pasos.",
        "Los cálculos sí los necesito.",
        "Que se sigan viendo los pasos.",
        "",
        "",
    ),
    again=("", "", "Todavía no es lo que quería.", "Aún no está bien.", "Otra vez, por favor.", "Casi."),
    approvals=(
        "¡Genial, justo así!",
        "¡Perfecto, gracias!",
        "Gracias, así está bien.",
        "Muy bien, ahora lo entiendo.",
        "Sí, así me gusta.",
        "Estupendo, así lo escribiría yo.",
        "¡Muchas gracias!",
        "Vale, lo entrego así.",
        "Mucho mejor así.",
        "Qué bien explicado, gracias.",
        "Eso es exactamente lo que quería.",
        "Súper, gracias.",
        "Excelente, se entiende muy bien.",
        "Buenísimo, gracias por la ayuda.",
    ),
)
