"""What stands, drives, floats or flies outdoors in the demo world, as drawings (see `shapes`).

One or more per kind and pose; `boat front` covers those who sit inside.
"""

from __future__ import annotations

from collections.abc import Mapping

_HULL = """
        poly c 4,90 110,90 96,118 22,118
        line w 4 11,97 103,97
        poly d 20,110 100,110 96,118 22,118"""
_WHEELS = """
        oval k 28,46 12,12
        oval g 28,46 6,6
        oval k 88,46 12,12
        oval g 88,46 6,6"""
_CAR = f"""120,60
        poly c 2,46 4,30 22,26 38,8 78,8 98,26 116,31 118,46
        poly a 31,26 42,12 56,12 56,26
        poly a 61,26 61,12 76,12 89,26
        line d 2 58,28 58,44
        box d 2,42 118,47
        oval y 114,36 3,4
        oval r 4,36 2,4
        {_WHEELS}"""
_HATCHBACK = f"""120,60
        poly c 4,46 6,16 14,6 70,6 92,26 114,30 118,46
        poly a 16,25 20,11 42,11 42,25
        poly a 47,25 47,11 67,11 83,25
        line d 2 45,28 45,44
        box d 2,42 118,47
        oval y 113,36 3,4
        oval r 6,32 2,4
        {_WHEELS}"""
_BUS = """140,76
        box c 2,8 138,62
        box l 2,8 138,13
        box a 8,18 26,36
        box a 31,18 49,36
        box a 54,18 72,36
        box a 77,18 95,36
        box a 100,18 114,60
        box a 119,18 138,38
        box w 2,42 98,46
        oval k 32,62 12,12
        oval g 32,62 6,6
        oval k 116,62 12,12
        oval g 116,62 6,6
        oval y 134,52 3,4"""
_TRUCK = """140,82
        box m 2,60 134,67
        box c 2,6 86,62
        line d 2 30,8 30,60
        line d 2 58,8 58,60
        poly c 92,22 116,22 130,42 136,46 136,66 92,66
        poly a 99,28 114,28 124,43 99,43
        oval k 22,68 12,12
        oval g 22,68 6,6
        oval k 50,68 12,12
        oval g 50,68 6,6
        oval k 114,68 12,12
        oval g 114,68 6,6
        oval y 133,56 3,4"""
_TRAIN = """
        box m 0,84 220,87
        box c 4,40 62,76
        box c 70,40 128,76
        box l 4,40 62,44
        box l 70,40 128,44
        box y 10,48 22,60
        box y 27,48 39,60
        box y 44,48 56,60
        box y 76,48 88,60
        box y 93,48 105,60
        box y 110,48 122,60
        line m 4 60,74 72,74
        line m 4 126,74 138,74
        box c 136,28 162,76
        box d 133,26 165,32
        box y 142,38 156,52
        box c 160,44 208,76
        oval c 208,60 8,16
        box d 190,26 200,46
        box d 187,24 203,30
        oval k 172,42 5,4
        poly m 206,76 218,84 200,84
        oval k 148,78 8,8
        oval k 168,78 8,8
        oval k 190,78 8,8
        oval k 16,79 6,6
        oval k 50,79 6,6
        oval k 82,79 6,6
        oval k 116,79 6,6
        oval y 214,54 4,4"""
_SMOKE = """
        oval w 196,14 12,9
        oval w 176,9 15,9
        oval w 152,8 16,8
        oval w 126,9 13,6"""
_PARASOL = """
        oval c 60,52 56,48
        oval l 60,52 34,48
        oval c 60,52 13,48
        oval . 18,58 15,12
        oval . 46,58 13,12
        oval . 74,58 13,12
        oval . 102,58 15,12
        box . 0,57 120,104
        line k 3 60,0 60,6"""

THINGS: Mapping[str, str] = {
    "boat sailing": f"""114,130
        line b 3 56,90 56,4
        poly w 60,8 60,82 104,82
        poly l 52,16 52,82 12,82
        poly r 56,2 72,6 56,11
        {_HULL}""",
    "boat sailing/2": f"""114,130
        line b 3 40,90 40,6
        poly w 44,8 96,76 106,84 44,84
        line c 7 50,62 88,70
        poly c 40,2 24,6 40,11
        {_HULL}""",
    "boat moored": f"""114,130
        line b 3 44,90 44,14
        line m 1 44,14 106,90
        line m 1 44,14 6,90
        line w 7 48,78 92,74
        box w 54,76 92,90
        box a 60,80 70,87
        box a 76,80 86,87
        box b 104,70 112,124
        line k 2 96,96 108,84
        {_HULL}""",
    "boat front": f"114,130 {_HULL}",
    "lighthouse standing": """76,156
        poly g 0,154 8,140 24,132 52,132 70,142 76,154
        poly m 0,154 18,144 46,148 76,154
        poly c 20,138 28,42 48,42 56,138
        poly w 24,94 26,74 50,74 52,94
        poly w 21,128 22,114 54,114 55,128
        box k 35,120 43,138
        box m 22,37 54,44
        box y 28,20 48,37
        line m 2 38,20 38,37
        poly r 24,20 38,6 52,20
        line m 2 38,0 38,8""",
    "buoy floating": """70,100
        line m 4 26,40 32,14
        line m 4 44,40 38,14
        line m 2 28,30 42,30
        oval y 35,9 7,7
        poly c 16,78 54,78 46,38 24,38
        poly w 20,64 50,64 48,54 22,54
        oval c 35,82 32,14
        oval d 35,87 28,9""",
    "car parked": _CAR,
    "car parked/2": _HATCHBACK,
    "car driving": _CAR,
    "car driving/2": _HATCHBACK,
    "bus": _BUS,
    "truck": _TRUCK,
    "train stopped": f"220,90 {_TRAIN}",
    "train moving": f"220,90 {_TRAIN} {_SMOKE}",
    "bicycle": """124,82
        ring k 28,54 26,26 4
        ring k 96,54 26,26 4
        line g 1 28,32 28,76
        line g 1 6,54 50,54
        line g 1 96,32 96,76
        line g 1 74,54 118,54
        line c 6 28,54 46,22
        line c 6 28,54 60,54
        line c 6 60,54 44,18
        line c 6 60,54 86,20
        line c 6 48,24 86,22
        line c 6 96,54 84,14
        line k 6 34,14 52,14
        line k 4 84,14 82,6 96,4
        oval k 60,54 6,6""",
    "plane": """146,76
        poly d 64,34 52,6 64,6 88,32
        poly c 16,34 2,8 18,8 36,30
        oval c 78,38 62,11
        poly c 10,32 40,30 40,44
        poly d 10,34 0,46 12,46 30,40
        poly d 60,40 28,72 46,72 92,42
        poly a 124,32 134,35 136,38 122,37
        oval k 50,36 2,2
        oval k 60,36 2,2
        oval k 70,36 2,2
        oval k 80,36 2,2
        oval k 90,36 2,2
        oval k 100,36 2,2
        oval k 110,36 2,2
        oval m 58,60 7,4""",
    "balloon": """92,130
        poly c 8,58 84,58 58,98 34,98
        oval c 46,44 44,44
        poly l 18,58 74,58 52,98 40,98
        oval l 46,44 30,44
        poly c 34,58 58,58 48,98 44,98
        oval c 46,44 13,44
        box d 33,95 59,100
        line m 2 36,98 38,112
        line m 2 56,98 54,112
        box b 35,111 57,127
        box t 35,111 57,115""",
    "kite": """90,132
        line m 2 45,84 38,98 50,110 42,128
        poly r 28,94 48,102 30,104 46,94
        poly o 40,106 60,114 42,116 58,106
        poly r 34,120 52,128 36,130 50,120
        poly c 45,2 84,42 45,88 6,42
        poly l 45,2 84,42 45,42
        poly l 45,42 6,42 45,88
        line b 2 45,4 45,86
        line b 2 8,42 82,42""",
    "house": """120,112
        box m 84,12 96,36
        box c 16,52 104,110
        poly b 4,54 60,10 116,54
        poly m 4,54 60,10 66,10 14,54
        box m 50,76 70,110
        oval Y 66,94 2,2
        box w 23,62 43,84
        box y 25,64 41,82
        line w 2 33,64 33,82
        line w 2 25,73 41,73
        box w 77,62 97,84
        box y 79,64 95,82
        line w 2 87,64 87,82
        line w 2 79,73 95,73""",
    "house/2": """130,104
        box m 22,4 36,30
        box c 10,44 120,102
        poly m 2,46 20,14 110,14 128,46
        box b 54,66 74,102
        box w 18,58 44,80
        box y 20,60 42,78
        line w 2 31,60 31,78
        box w 86,58 112,80
        box y 88,60 110,78
        line w 2 99,60 99,78""",
    "house/3": """110,130
        box c 14,46 96,128
        poly r 4,48 55,6 106,48
        box b 46,96 64,128
        box w 22,56 42,76
        box y 24,58 40,74
        box w 68,56 88,76
        box y 70,58 86,74
        box w 20,90 40,112
        box y 22,92 38,110
        box w 70,90 90,112
        box y 72,92 88,110
        oval y 55,34 7,7""",
    "tree": """110,140
        poly b 44,139 49,80 61,80 68,139
        line b 6 54,96 36,76
        line b 6 56,90 76,70
        oval c 55,40 34,36
        oval c 28,58 25,22
        oval c 82,56 26,24
        oval c 55,66 34,20
        oval d 66,70 24,12
        oval d 86,66 16,10
        oval d 30,68 16,9
        oval l 44,26 17,12
        oval l 24,50 11,8
        oval l 78,44 12,8""",
    "tree/2": """96,150
        poly b 42,149 45,90 53,90 56,149
        oval c 48,60 38,54
        oval c 48,30 26,28
        oval d 60,84 24,22
        oval d 66,52 14,16
        oval l 36,38 14,18
        oval l 30,66 9,12""",
    "tree/3": """130,120
        poly b 58,119 60,60 70,60 74,119
        line b 5 64,78 34,56
        line b 5 66,74 98,52
        oval c 30,46 28,20
        oval c 64,28 36,26
        oval c 100,44 28,20
        oval c 66,52 40,16
        oval d 44,60 24,8
        oval d 98,56 20,7
        oval l 52,18 18,9
        oval l 24,38 13,8
        oval l 98,34 13,8""",
    "flower growing": """74,116
        line n 5 37,50 37,114
        oval n 22,88 14,6
        oval n 52,78 14,6
        oval c 37,14 12,13
        oval c 37,56 12,13
        oval c 15,34 13,12
        oval c 59,34 13,12
        oval c 21,19 12,11
        oval c 53,19 12,11
        oval c 21,50 12,11
        oval c 53,50 12,11
        ring d 37,35 20,20 2
        oval Y 37,35 12,12
        oval o 37,35 6,6""",
    "flower growing/2": """64,116
        line n 5 32,54 32,114
        poly n 32,112 8,72 14,68 30,96
        poly n 32,106 56,64 52,58 34,92
        poly c 6,10 20,26 32,4 44,26 58,10 54,52 42,62 22,62 10,52
        poly l 22,22 32,4 42,22 40,60 24,60""",
    "flower growing/3": """84,116
        line n 4 42,50 42,114
        line n 4 42,80 18,62
        line n 4 42,86 66,66
        oval n 30,102 12,5
        oval n 54,100 12,5
        oval c 42,30 20,20
        oval c 16,54 13,13
        oval c 68,58 13,13
        ring d 42,30 12,12 3
        oval Y 42,30 7,7
        oval Y 16,54 5,5
        oval Y 68,58 5,5""",
    "bench": """134,74
        line m 5 22,38 20,71
        line m 5 112,38 114,71
        line m 5 20,4 22,44
        line m 5 114,4 112,44
        box c 4,4 130,12
        box c 4,17 130,25
        poly c 4,38 130,38 132,48 2,48
        box d 2,47 132,52
        line m 4 8,52 6,72
        line m 4 126,52 128,72""",
    "tent": """140,92
        line t 2 18,74 2,91
        line t 2 122,74 138,91
        poly d 84,4 134,90 62,90
        poly c 68,4 84,4 134,90 108,90
        poly c 68,4 10,90 108,90
        poly k 64,28 42,90 86,90
        poly l 64,28 42,90 30,90
        poly l 64,28 86,90 96,90
        line b 3 68,0 68,8""",
    "umbrella open": f"""120,136
        {_PARASOL}
        line b 5 60,50 60,134""",
    "umbrella held": f"""120,136
        {_PARASOL}
        line k 4 60,50 60,118 66,124 72,118""",
    "ball": """64,64
        oval c 32,32 31,31
        poly w 26,2 40,2 46,32 40,62 26,62 34,32
        poly l 4,24 14,8 22,16 10,34
        oval w 32,4 8,3""",
    "ball/2": """64,64
        oval c 32,32 31,31
        line d 3 2,32 62,32
        line d 3 32,2 32,62
        line d 3 10,12 20,32 10,52
        line d 3 54,12 44,32 54,52
        oval l 22,18 6,5""",
    "snowman": """88,126
        line b 4 22,66 2,50
        line b 4 66,66 86,48
        oval w 44,98 34,28
        oval w 44,62 25,22
        oval w 44,34 18,17
        oval g 56,104 16,16
        oval w 50,100 18,18
        box k 26,16 62,22
        box k 32,0 56,18
        line r 7 28,50 60,50
        line r 6 58,50 64,68
        oval k 37,31 3,3
        oval k 51,31 3,3
        poly o 43,35 64,40 43,42
        oval k 44,62 3,3
        oval k 44,74 3,3
        oval k 44,90 3,3""",
}
