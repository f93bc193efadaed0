"""Shunt in front of rtpengine: calls through SIP servers, and commands of the NG protocol sent by the tests themselves.

Every scenario of the latter runs twice, with rtpengine alone and with the agent and a data plane in front of it: media must be the same.
"""
