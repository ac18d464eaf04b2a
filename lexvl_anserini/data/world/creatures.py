"""The animals of the demo world as drawings (see `shapes`), facing right; one or more per kind and pose."""

from __future__ import annotations

from collections.abc import Mapping

CREATURES: Mapping[str, str] = {
    "dog standing": """100,80
        line c 6 18,34 6,16
        line d 8 28,48 27,75
        line d 8 62,48 61,75
        oval c 42,40 28,13
        line c 8 20,44 17,75
        line c 8 70,46 70,75
        poly c 58,32 70,14 84,22 72,50
        oval c 78,20 13,11
        oval c 90,25 9,6
        oval k 96,22 3,3
        oval d 70,23 5,12
        oval k 82,17 2,2
        line r 3 65,35 77,40""",
    "dog sitting": """72,82
        line c 6 12,72 4,56
        oval c 26,60 20,20
        poly c 10,56 36,22 54,30 52,72 30,80
        line c 8 47,40 48,77
        line d 8 39,50 39,77
        oval d 22,76 16,5
        oval c 48,18 14,12
        oval c 60,24 9,6
        oval k 67,21 3,3
        oval d 39,21 5,13
        oval k 52,15 2,2
        line r 3 38,33 53,35""",
    "dog lying": """112,52
        line c 6 12,40 4,28
        oval c 44,34 36,15
        line c 8 66,42 92,47
        line d 8 22,46 44,47
        poly c 66,24 82,12 96,24 80,44
        oval c 86,21 13,11
        oval c 98,27 9,6
        oval k 105,24 3,3
        oval d 77,25 5,13
        line k 2 86,19 92,20""",
    "dog running": """122,74
        line c 6 18,28 4,12
        line d 8 30,38 14,52 6,66
        line d 8 78,40 98,46 112,58
        oval c 52,33 34,13
        line c 8 26,38 30,54 20,68
        line c 8 80,38 94,54 102,68
        poly c 74,26 86,10 100,18 88,42
        oval c 96,18 13,11
        oval c 109,23 9,6
        oval k 117,20 3,3
        oval d 84,15 11,5
        oval k 100,14 2,2
        line r 3 82,32 94,38""",
    "cat sitting": """72,92
        line c 7 52,84 65,78 66,60 59,48
        poly c 18,88 22,52 30,38 46,38 54,54 58,88
        oval c 38,76 21,14
        oval c 36,27 19,16
        poly c 18,24 18,2 32,14
        poly c 54,24 54,2 40,14
        poly p 22,17 21,8 28,14
        poly p 50,17 51,8 44,14
        oval Y 28,26 5,5
        oval Y 44,26 5,5
        oval k 28,26 2,4
        oval k 44,26 2,4
        poly p 33,33 39,33 36,37
        line w 1 28,36 10,33
        line w 1 28,38 12,41
        line w 1 44,36 62,33
        line w 1 44,38 60,41
        line d 2 33,62 33,88
        line d 2 42,62 42,88""",
    "cat lying": """116,58
        line c 7 16,44 6,52 22,54 44,54
        oval c 50,38 38,17
        oval d 30,46 14,9
        line c 7 66,52 90,53
        oval c 90,28 18,15
        poly c 73,24 73,3 86,15
        poly c 107,24 107,3 95,15
        poly p 77,18 76,9 83,15
        poly p 103,18 104,9 98,15
        line k 2 79,27 87,28
        line k 2 94,28 102,27
        poly p 88,33 94,33 91,37
        line w 1 84,37 70,36
        line w 1 98,37 112,36""",
    "cat walking": """116,82
        line c 6 22,40 8,28 8,8 14,4
        line d 7 34,46 26,76
        line d 7 64,48 72,76
        oval c 48,42 30,12
        line c 7 26,46 34,76
        line c 7 70,46 62,76
        oval c 88,32 17,15
        poly c 72,28 72,7 85,19
        poly c 104,28 104,7 92,19
        poly p 76,22 75,13 82,19
        poly p 101,22 101,13 96,19
        oval Y 82,31 4,4
        oval Y 95,31 4,4
        oval k 82,31 2,4
        oval k 95,31 2,4
        poly p 86,37 92,37 89,41
        line w 1 82,41 68,40
        line w 1 96,41 110,40""",
    "horse standing": """122,112
        poly d 16,42 4,80 12,86 22,54
        line d 8 34,62 33,107
        line d 8 76,62 75,107
        oval c 54,52 37,18
        line c 9 24,58 22,84 24,107
        line c 9 84,58 85,107
        poly c 68,42 86,12 104,16 92,62
        poly c 86,8 100,6 119,30 113,39 104,35 92,28
        poly c 90,9 92,0 98,7
        poly d 89,6 68,40 60,40 80,9
        oval k 102,18 2,2
        box k 20,104 29,111
        box k 81,104 90,111
        box k 29,104 37,111
        box k 71,104 79,111""",
    "horse grazing": """126,100
        poly d 16,30 4,68 12,74 22,42
        line d 8 34,50 33,95
        line d 8 74,50 73,95
        oval c 54,40 37,18
        line c 9 24,46 22,72 24,95
        line c 9 84,46 83,95
        poly c 74,28 92,30 112,72 98,80 80,56
        poly c 96,70 112,66 124,90 116,98 106,96
        poly c 100,70 98,60 106,66
        poly d 84,26 96,30 114,66 108,68
        oval k 111,78 2,2
        box k 20,92 29,99
        box k 79,92 88,99
        box k 29,92 37,99
        box k 69,92 77,99""",
    "horse running": """142,106
        poly d 22,38 2,36 0,50 14,50 26,50
        line d 8 36,56 28,78 12,90
        line d 8 90,58 116,62 124,80
        oval c 62,48 38,17
        line c 9 30,54 16,74 4,96
        line c 9 92,54 112,74 106,96
        poly c 78,40 100,10 116,18 100,60
        poly c 100,8 114,6 136,26 131,36 120,33 106,28
        poly c 103,9 104,0 111,7
        poly d 103,5 76,30 66,38 80,42 100,14
        oval k 117,17 2,2
        oval k 4,98 5,4
        oval k 106,98 5,4
        oval k 10,92 5,4
        oval k 125,82 5,4""",
    "cow standing": """124,96
        line c 3 14,30 5,58
        oval d 5,62 4,7
        line d 9 30,56 30,90
        line d 9 76,56 76,90
        poly c 12,26 30,22 88,22 98,32 94,62 72,66 20,64 11,50
        line c 9 20,56 19,90
        line c 9 88,56 88,90
        oval p 38,66 10,7
        poly c 86,24 108,18 118,40 112,52 100,48 90,44
        oval p 113,46 8,7
        line w 4 98,20 95,8
        line w 4 108,18 112,7
        oval d 92,24 7,4
        oval k 106,29 2,3
        oval q 36,36 13,10
        oval q 68,48 12,9
        oval q 74,26 9,5
        box k 15,88 24,95
        box k 84,88 93,95""",
    "cow grazing": """124,90
        line c 3 14,24 5,52
        oval d 5,56 4,7
        line d 9 30,50 30,84
        line d 9 76,50 76,84
        poly c 12,20 30,16 84,16 94,26 92,56 72,60 20,58 11,44
        line c 9 20,50 19,84
        line c 9 86,50 86,84
        oval p 38,60 10,7
        poly c 82,20 96,24 116,56 98,62
        poly c 96,52 114,50 122,74 112,82 102,76
        oval p 115,77 8,7
        line w 4 98,54 88,50
        line w 4 112,50 116,41
        oval k 109,60 2,3
        oval q 36,30 13,10
        oval q 66,42 12,9
        oval q 72,21 9,5
        box k 15,82 24,89
        box k 82,82 91,89""",
    "cow lying": """124,68
        line c 3 12,40 3,56
        oval c 50,42 46,23
        line d 9 72,60 96,62
        line d 9 24,62 46,63
        poly c 82,26 106,10 118,32 112,46 98,48
        oval p 113,40 8,7
        line w 4 97,14 93,3
        line w 4 107,11 111,2
        oval d 91,19 7,4
        oval k 105,23 2,3
        oval q 32,34 13,10
        oval q 62,46 12,9
        oval q 66,26 9,5""",
    "sheep standing": """106,84
        line m 6 32,50 32,80
        line m 6 66,50 66,80
        line m 6 24,50 23,80
        line m 6 74,50 74,80
        oval c 46,38 32,20
        oval c 20,34 13,13
        oval c 30,22 13,12
        oval c 48,18 14,12
        oval c 66,24 13,12
        oval c 74,38 12,13
        oval c 62,52 13,10
        oval c 42,54 14,10
        oval c 24,48 13,11
        line d 2 34,34 40,38 46,34
        line d 2 54,42 60,46 66,42
        line d 2 28,46 34,48 38,44
        oval m 90,36 11,14
        oval m 80,30 8,4
        oval c 87,22 11,7
        oval w 93,32 3,3
        oval k 94,32 2,2""",
    "sheep grazing": """106,78
        line m 6 32,44 32,74
        line m 6 66,44 66,74
        line m 6 24,44 23,74
        line m 6 74,44 74,74
        oval c 46,32 32,20
        oval c 20,28 13,13
        oval c 30,16 13,12
        oval c 48,13 14,12
        oval c 66,18 13,12
        oval c 76,32 12,13
        oval c 62,46 13,10
        oval c 42,48 14,10
        oval c 24,42 13,11
        line d 2 34,28 40,32 46,28
        line d 2 54,36 60,40 66,36
        line d 2 28,40 34,42 38,38
        oval m 90,58 10,14
        oval m 80,50 8,4
        oval c 87,46 11,7
        oval w 93,56 3,3
        oval k 94,56 2,2""",
    "rabbit sitting": """74,94
        oval c 42,20 6,19
        oval c 56,20 6,19
        oval p 42,20 3,14
        oval p 56,20 3,14
        oval w 9,76 8,8
        oval c 32,66 25,25
        oval c 50,46 17,15
        oval d 26,86 18,6
        oval c 54,88 11,5
        oval d 30,68 14,14
        oval k 56,42 3,3
        oval p 66,49 3,2
        line w 1 60,51 73,47
        line w 1 60,53 73,55""",
    "rabbit running": """112,72
        oval c 74,14 15,6
        oval c 70,22 15,5
        oval p 74,14 11,3
        oval w 9,34 8,8
        line d 8 30,48 14,62 2,60
        oval c 44,40 33,17
        oval d 28,44 15,13
        oval c 90,28 16,13
        line c 7 72,48 92,58 106,56
        line c 8 36,54 20,66 8,67
        oval k 95,25 3,3
        oval p 105,30 3,2""",
    "bird flying": """116,84
        poly d 62,46 88,4 84,46
        poly c 38,46 14,42 6,52 40,56
        oval c 58,52 26,11
        poly c 44,48 24,2 52,14 72,48
        poly l 48,46 34,14 50,22 62,46
        oval c 88,44 11,10
        poly o 97,40 112,45 97,49
        oval k 91,41 2,2""",
    "bird flying/2": """116,84
        poly d 58,32 78,76 82,36
        poly c 38,34 12,24 10,36 40,42
        oval c 58,36 26,11
        poly c 42,36 20,82 50,66 70,38
        poly l 46,38 32,70 50,60 60,38
        oval c 88,30 11,10
        poly o 97,26 112,31 97,35
        oval k 91,27 2,2""",
    "bird perched": """78,74
        line o 3 36,56 36,72
        line o 3 44,56 44,72
        poly c 22,42 0,58 8,66 34,56
        oval c 38,44 20,16
        poly d 22,40 46,36 44,52 12,58
        oval c 54,24 14,13
        poly o 66,20 78,26 66,30
        oval k 58,21 2,2
        oval l 48,50 9,7""",
    "duck paddling": """100,68
        poly c 10,46 0,26 24,38
        oval c 44,50 38,18
        poly c 60,50 60,22 78,22 80,52
        oval c 70,17 14,13
        poly o 81,12 99,18 98,23 80,22
        line w 4 62,34 79,35
        oval d 38,48 20,10
        oval k 74,14 2,2""",
    "duck walking": """100,86
        line o 4 38,64 36,82 46,83
        line o 4 52,64 54,82 64,83
        poly c 10,44 0,24 24,36
        oval c 44,48 38,19
        poly c 60,50 60,22 78,22 80,52
        oval c 70,17 14,13
        poly o 81,12 99,18 98,23 80,22
        line w 4 62,34 79,35
        oval d 38,46 20,10
        oval k 74,14 2,2""",
    "fish swimming": """108,64
        poly d 50,16 66,2 82,6 80,18
        poly d 56,46 48,62 68,56 70,46
        poly c 34,32 2,8 8,32 2,56
        oval c 66,32 36,22
        line d 4 46,16 42,32 46,48
        line d 4 58,12 54,32 58,52
        poly l 62,36 74,28 72,44
        oval w 86,26 6,6
        oval k 88,26 3,3
        line d 2 94,38 101,36""",
}
