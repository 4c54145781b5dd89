"""Files of credentials with the same three tokens and a secret key, as Hadoop 3.5.0 writes them in its two formats.

The tokens: alice, by the real user spark, for a name service; Jürgen for an address; another kind's.
"""

import base64

IDENTIFIER = bytes.fromhex("0005616c696365047961726e05737061726b8a01a0c4506c7b8a01a0e85cf07b8e012cf9")
PASSWORD = b"password-of-one-20by"
WRITABLE = base64.b64decode(
    "SERUUwADCWFsaWFzIG9uZSQABWFsaWNlBHlhcm4Fc3BhcmuKAaDEUGx7igGg6Fzwe44BLPkUcGFzc3dvcmQtb2Ytb25lLTIwYnkV"
    "SERGU19ERUxFR0FUSU9OX1RPS0VOE2hhLWhkZnM6bmFtZXNlcnZpY2UCcm0DeHl6AnB3E1JNX0RFTEVHQVRJT05fVE9LRU4OMTI3"
    "LjAuMC4xOjgwMzIOMTI3LjAuMC4xOjgwMjAXAAdKw7xyZ2VuAAABiH//////////AQIUcGFzc3dvcmQtb2YtdHdvLTIwYnkVSERG"
    "U19ERUxFR0FUSU9OX1RPS0VODjEyNy4wLjAuMTo4MDIwARJtYXAucmVkdWNlLnNodWZmbGUDAQID"
)
PROTOBUF = base64.b64decode(
    "SERUUwGyAgp1CglhbGlhcyBvbmUSaAokAAVhbGljZQR5YXJuBXNwYXJrigGgxFBse4oBoOhc8HuOASz5EhRwYXNzd29yZC1vZi1v"
    "bmUtMjBieRoVSERGU19ERUxFR0FUSU9OX1RPS0VOIhNoYS1oZGZzOm5hbWVzZXJ2aWNlCjQKAnJtEi4KA3h5ehICcHcaE1JNX0RF"
    "TEVHQVRJT05fVE9LRU4iDjEyNy4wLjAuMTo4MDMyCmgKDjEyNy4wLjAuMTo4MDIwElYKFwAHSsO8cmdlbgAAAYh//////////wEC"
    "EhRwYXNzd29yZC1vZi10d28tMjBieRoVSERGU19ERUxFR0FUSU9OX1RPS0VOIg4xMjcuMC4wLjE6ODAyMBIZChJtYXAucmVkdWNl"
    "LnNodWZmbGUaAwECAw=="
)
