"""What is found in the rooms of the demo world, as drawings (see `shapes`); one or more per kind and pose.

`bowl front` covers the fish that swim inside.
"""

from __future__ import annotations

from collections.abc import Mapping

_BOWL_FRONT = """
        ring a 60,52 52,46 4
        line w 3 24,38 28,28 36,20
        oval w 60,12 34,5
        oval a 60,12 31,3"""
HOUSEHOLD: Mapping[str, str] = {
    "cup": """92,74
        ring c 66,38 22,20 8
        poly c 6,10 66,10 60,66 50,73 22,73 12,66
        oval l 36,11 30,8
        oval b 36,12 25,5
        line l 4 16,24 20,60
        line d 3 58,24 54,62""",
    "bottle": """46,124
        box m 15,0 31,12
        poly c 17,10 29,10 30,36 42,54 42,120 38,123 8,123 4,120 4,54 16,36
        box w 4,70 42,98
        line d 3 12,80 34,80
        line d 3 12,88 30,88
        line l 4 11,56 11,66
        line l 3 20,16 20,34""",
    "book lying": """120,66
        poly w 8,42 68,60 114,34 114,44 68,64 8,52
        poly d 4,36 4,50 66,65 116,46 116,42 66,60 10,46
        poly c 4,34 60,6 118,28 66,56
        line l 3 26,32 64,14
        line w 4 46,33 78,26
        line w 3 54,39 74,34""",
    "book reading": """84,60
        poly c 0,8 42,16 84,8 84,52 42,60 0,52
        poly w 5,4 40,12 40,54 5,46
        poly w 44,12 79,4 79,46 44,54
        line g 2 11,16 34,21
        line g 2 11,26 34,31
        line g 2 50,21 73,16
        line g 2 50,31 73,26""",
    "lamp": """76,136
        oval m 38,128 24,7
        line m 6 38,56 38,128
        oval y 38,54 14,8
        poly c 22,4 54,4 74,54 2,54
        poly l 30,4 44,4 46,54 26,54
        line d 3 4,52 72,52""",
    "clock": """84,84
        oval c 42,42 41,41
        oval w 42,42 32,32
        box k 40,13 44,20
        box k 40,64 44,71
        box k 13,40 20,44
        box k 64,40 71,44
        line k 5 42,42 42,22
        line k 4 42,42 58,52
        oval r 42,42 4,4""",
    "clock/2": """84,84
        oval c 42,42 41,41
        oval w 42,42 32,32
        box k 40,13 44,20
        box k 40,64 44,71
        box k 13,40 20,44
        box k 64,40 71,44
        line k 5 42,42 26,34
        line k 4 42,42 54,20
        oval r 42,42 4,4""",
    "teddy": """92,112
        oval c 20,16 14,14
        oval c 72,16 14,14
        oval l 20,16 8,8
        oval l 72,16 8,8
        oval c 46,78 28,28
        oval c 14,66 15,10
        oval c 78,66 15,10
        oval l 46,80 18,19
        oval c 46,34 29,26
        oval l 46,43 14,11
        oval k 46,38 6,4
        line k 2 46,40 46,48
        oval k 34,29 4,4
        oval k 58,29 4,4
        oval c 22,100 17,11
        oval c 70,100 17,11
        oval l 20,101 9,7
        oval l 72,101 9,7
        poly r 46,62 34,57 34,68
        poly r 46,62 58,57 58,68""",
    "chair": """80,124
        line d 6 22,66 22,112
        line d 6 66,66 68,112
        poly c 8,2 18,2 20,72 10,72
        poly c 46,2 56,2 56,66 48,66
        box c 12,8 52,18
        box c 12,28 52,38
        poly c 6,66 58,60 76,70 20,80
        poly d 20,80 76,70 76,76 20,87
        line c 7 12,74 10,120
        line c 7 64,76 66,120""",
    "chair/2": """80,124
        line b 5 20,84 14,121
        line b 5 60,84 66,121
        line b 5 32,84 30,114
        line b 5 50,84 52,114
        oval c 40,34 30,34
        poly c 12,40 68,40 62,78 18,78
        oval l 40,32 20,22
        oval d 40,80 34,10
        oval c 40,76 34,10""",
    "table": """150,92
        line d 7 28,24 28,76
        line d 7 122,24 122,76
        poly l 16,4 134,4 148,20 2,20
        poly c 2,20 148,20 148,28 2,28
        poly l 18,6 132,6 144,18 6,18
        box c 8,28 18,91
        box c 132,28 142,91
        box d 18,28 132,33""",
    "bowl": f"""120,100
        oval a 60,52 52,46
        oval B 60,58 47,38
        box a 8,4 112,32
        oval a 60,32 47,7
        oval t 60,90 30,7
        line n 4 36,86 32,66 38,52
        {_BOWL_FRONT}""",
    "bowl front": f"120,100 {_BOWL_FRONT}",
}
