#!/usr/bin/python3
"""Tests of results.py with output of `check` in the form of xfstests 63a29724 (2025-12-23), and of a row of a table."""
import pathlib
import sys
import unittest

import results

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "guest"))

import upstream

OUTPUT = """\
FSTYP         -- ext4
MOUNT_OPTIONS -- -o acl,user_xattr /dev/loop1 /mnt/scratch

ext4/901            12s
generic/902   3s ...  4s
generic/903        [not run] FITRIM is not supported on /dev/nbd0
second line
generic/904       - output mismatch (see /run/results/generic/904.out.bad)
    --- tests/generic/904.out\t2025-12-23 16:31:21
    +++ /run/results/generic/904.out.bad\t2026-11-26 20:10:00
    @@ -1,2 +1,3 @@
     QA output created by 904
    +pwrite: Input/output error
    +pwrite: Input/output error
    ...
    (Run 'diff -u /t/tests/generic/904.out /run/results/generic/904.out.bad'  to see the entire diff)
generic/905       [failed, exit status 1]- output mismatch (see /run/results/generic/905.out.bad)
    --- tests/generic/905.out\t2025-12-23 16:31:21
    +++ /run/results/generic/905.out.bad\t2026-11-26 20:10:00
    @@ -1,2 +1,1 @@
     QA output created by 905
    -Silence is golden
generic/906       _check_dmesg: something found in dmesg (see /run/results/generic/906.dmesg)

"""
ENDED = OUTPUT + "Ran: ext4/901 generic/902\nNot run: generic/903\nFailures: generic/904\nFailed 3 of 6 tests\n"
ROWS = [
    ("ext4/901", "pass", ""),
    ("generic/902", "pass", ""),
    ("generic/903", "skip", "FITRIM is not supported on /dev/nbd0; second line"),
    ("generic/904", "fail", "pwrite: Input/output error"),
    ("generic/905", "fail", "not printed: Silence is golden"),
    ("generic/906", "fail", "_check_dmesg: something found in dmesg (see /run/results/generic/906.dmesg)"),
]


class Output(unittest.TestCase):
    def test_each_test_has_a_row(self):
        self.assertEqual(ROWS, results.rows(ENDED))

    def test_a_test_has_a_row_when_the_next_has_begun(self):
        self.assertEqual(ROWS[:-1], results.rows(OUTPUT))
        for end in range(len(OUTPUT)):
            found = results.rows(OUTPUT[:end])
            self.assertEqual(ROWS[:len(found)], found)
        self.assertEqual([], results.rows(""))

    def test_a_cell_stays_one_cell(self):
        self.assertEqual("| nvme/901 | no a/b |", upstream.cells("nvme/901", "no a|b"))


if __name__ == "__main__":
    unittest.main()
