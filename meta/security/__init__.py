"""Records of security in the metadata store: ACLs, users' credentials, delegation tokens, quotas."""
