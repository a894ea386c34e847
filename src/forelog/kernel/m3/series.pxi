# The metadata of a series in M3's commit log. Included by _kernel.pyx.

cdef int check_tags(const unsigned char *tags, int64_t size) noexcept nogil:
    cdef int64_t at = 4, i
    if size < 4 or tags[0] != 0x75 or tags[1] != 0x27:
        return BAD_TAGS
    for i in range(2 * <int64_t>load_u16_le(tags + 2)):
        if size - at < 2:
            return BAD_TAGS
        at += 2 + load_u16_le(tags + at)
        if at > size:
            return BAD_TAGS
    return 0 if at == size else BAD_TAGS


cdef int check_metadata(const unsigned char *metadata, int64_t size) noexcept nogil:
    cdef const unsigned char *p = metadata + 4
    cdef const unsigned char *stop = metadata + size
    cdef const unsigned char *data
    cdef int64_t length
    cdef uint64_t shard
    if size < 4 or memcmp(metadata, METADATA_HEAD, 4) != 0:
        return BAD_METADATA
    if get_bytes(&p, stop, &data, &length) or get_bytes(&p, stop, &data, &length):
        return BAD_METADATA
    if get_uint(&p, stop, UINT32_MAX, &shard) or get_bytes(&p, stop, &data, &length) or p != stop:
        return BAD_METADATA
    return check_tags(data, length) if length else 0


def m3_parse_metadata(data):
    cdef _View view = _View(data)
    cdef const unsigned char *p = view.data + 4
    cdef const unsigned char *stop = view.data + view.size
    cdef const unsigned char *part
    cdef int64_t size
    cdef uint64_t shard = 0
    if check_metadata(view.data, view.size):
        raise ValueError("no metadata of a series")
    get_bytes(&p, stop, &part, &size)
    series_id = PyBytes_FromStringAndSize(<char *>part, size)
    get_bytes(&p, stop, &part, &size)
    namespace = PyBytes_FromStringAndSize(<char *>part, size)
    get_uint(&p, stop, UINT32_MAX, &shard)
    get_bytes(&p, stop, &part, &size)
    return series_id, namespace, shard, get_tags(part, size) if size else None


cdef tuple get_tags(const unsigned char *tags, int64_t size):
    """The tags as pairs. They have been checked."""
    cdef int64_t at = 4
    cdef list parts = []
    while at < size:
        parts.append(PyBytes_FromStringAndSize(<char *>tags + at + 2, load_u16_le(tags + at)))
        at += 2 + load_u16_le(tags + at)
    return tuple(zip(parts[::2], parts[1::2], strict=True))


def m3_metadata(bytes series_id not None, bytes namespace not None, uint64_t shard, tags):
    cdef _Messages message = _Messages()
    cdef Stretch *out = &message.bodies
    cdef unsigned char *p
    packed = None
    if tags is not None:
        parts = [len(part).to_bytes(2, "little") + part for tag in tags for part in tag]
        packed = b"\x75\x27" + (len(parts) // 2).to_bytes(2, "little") + b"".join(parts)
    if reserve(out, 32 + bytes_size(series_id) + bytes_size(namespace) + bytes_size(packed)):
        raise MemoryError
    p = out.data
    memcpy(p, METADATA_HEAD, 4)
    p = put_bytes(put_bytes(p + 4, series_id), namespace)
    p = put_bytes(put_uint(p, shard), packed)
    return PyBytes_FromStringAndSize(<char *>out.data, p - out.data)
