import sys
sys.modules.setdefault('rfc3987_syntax', None)
