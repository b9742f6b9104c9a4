"""English words that carry grammar rather than subject matter. Two lists, because two rules use them.

`STOP_WORDS` never name an entity and never count as a name in a query; the ends of contractions ("it's", "we'll") are
among them. `KEYWORD_STOP_WORDS` never become keywords: common verbs and adverbs that name nothing by themselves too.
"""

from __future__ import annotations


def _words(lines: str) -> frozenset[str]:
    return frozenset(lines.split())


STOP_WORDS: frozenset[str] = _words(
    """
    a an the
    about above across after against along among around as at before behind below beneath beside besides between beyond
    by despite down during except for from in inside into near of off on onto out outside over past per since than
    through throughout till to toward towards under underneath until unto up upon via with within without
    and although because but either if neither nor or so though unless whereas whether while yet
    am are be been being can cannot could did do does doing done had has have having is may might must ought shall
    should was were will would
    i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself she her hers
    herself it its itself they them their theirs themselves one ones
    this that these those there here such some any each every both all
    who whom whose which what when where why how
    not no also just only too very then
    s t ll re ve
    """
)

KEYWORD_STOP_WORDS: frozenset[str] = STOP_WORDS | _words(
    """
    again almost already always another anyone anything away became become becomes came come comes didn doesn else
    enough especially even ever everyone everything first further gets getting give given gives goes going hence
    however indeed instead keep kept knew know known last least less like likely made mainly make makes making many
    maybe more moreover most mostly much nearly need needs never nevertheless next none nothing often once other others
    otherwise perhaps please quite rather really said same says seem seems several simply someone something sometimes
    soon still sure take taken takes therefore thing things thus time times together took unlike used uses using usually
    want wants well went whatever whenever wherever whoever whole
    """
)
