# A keyed hash, for tables whose keys come from clients. Included by _kernel.pyx.

cdef uint64_t hash_key0, hash_key1


cdef int seed_hash() except -1:
    """Choose a key at random: otherwise a client could prepare keys that all fall into one slot."""
    global hash_key0, hash_key1
    import os
    seed = os.urandom(16)
    hash_key0, hash_key1 = int.from_bytes(seed[:8], "little"), int.from_bytes(seed[8:], "little")
    return 0


seed_hash()


cdef inline uint64_t rotate(uint64_t word, int by) noexcept nogil:
    return word << by | word >> (64 - by)


cdef inline void sip_round(uint64_t *v) noexcept nogil:
    v[0] += v[1]
    v[2] += v[3]
    v[1] = rotate(v[1], 13) ^ v[0]
    v[3] = rotate(v[3], 16) ^ v[2]
    v[0] = rotate(v[0], 32) + v[3]
    v[2] += v[1]
    v[3] = rotate(v[3], 21) ^ v[0]
    v[1] = rotate(v[1], 17) ^ v[2]
    v[2] = rotate(v[2], 32)


cdef uint64_t keyed_hash(const unsigned char *p, int64_t size) noexcept nogil:
    """SipHash-1-3. A CRC would not do: the same inputs collide in it whatever it starts with."""
    cdef uint64_t v[4]
    cdef uint64_t word
    cdef int64_t left = size
    v[0] = hash_key0 ^ <uint64_t>0x736F6D6570736575
    v[1] = hash_key1 ^ <uint64_t>0x646F72616E646F6D
    v[2] = hash_key0 ^ <uint64_t>0x6C7967656E657261
    v[3] = hash_key1 ^ <uint64_t>0x7465646279746573
    while left >= 8:
        memcpy(&word, p, 8)
        v[3] ^= word
        sip_round(v)
        v[0] ^= word
        p += 8
        left -= 8
    word = 0
    memcpy(&word, p, left)
    word ^= <uint64_t>size << 56
    v[3] ^= word
    sip_round(v)
    v[0] ^= word
    v[2] ^= 0xFF
    sip_round(v)
    sip_round(v)
    sip_round(v)
    return v[0] ^ v[1] ^ v[2] ^ v[3]
