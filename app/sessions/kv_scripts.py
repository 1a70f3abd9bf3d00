"""The steps that must be atomic on the server. All keys of a call share one hash tag, so they run on a cluster too."""

PUBLISH = """
-- KEYS: head, index, then every chunk of the new head
-- ARGV: expected generation ('0': no head), TTL in seconds, then the head's fields and values
local current = redis.call('HGET', KEYS[1], 'generation') or '0'
if current ~= ARGV[1] then return 0 end
local listed, prefix = {}, string.sub(KEYS[1], 1, -5)
for i = 3, #KEYS do
    -- EXPIRE answers 0 for a chunk that was evicted or dropped meanwhile: such a head must never be seen
    if redis.call('EXPIRE', KEYS[i], ARGV[2]) == 0 then return -1 end
    listed[KEYS[i]] = true
end
redis.call('DEL', KEYS[1])
for i = 3, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('EXPIRE', KEYS[1], ARGV[2])
for _, key in ipairs(redis.call('SMEMBERS', KEYS[2])) do
    if not listed[key] then
        -- of this session only, whatever stands in the index
        if string.sub(key, 1, #prefix) == prefix then redis.call('UNLINK', key) end
        redis.call('SREM', KEYS[2], key)
    end
end
for key in pairs(listed) do redis.call('SADD', KEYS[2], key) end
redis.call('EXPIRE', KEYS[2], ARGV[2])
return 1
"""
"""Make a head visible if the generation is still the expected one and every chunk is there; remove all other chunks."""

DROP = """
-- KEYS: head, index. ARGV: the only generation to drop, or '' for any, a head of a wrong type included
local is_head = redis.call('TYPE', KEYS[1]).ok == 'hash'
if ARGV[1] ~= '' and not (is_head and redis.call('HGET', KEYS[1], 'generation') == ARGV[1]) then return 0 end
local prefix = string.sub(KEYS[1], 1, -5)
local listed = redis.call('TYPE', KEYS[2]).ok == 'set' and redis.call('SMEMBERS', KEYS[2]) or {}
local function list(manifest)
    for _, segment in ipairs(cjson.decode(manifest).segments) do
        for i = 1, #segment[2] do table.insert(listed, prefix .. 'seg:' .. segment[1] .. ':' .. (i - 1)) end
    end
end
-- the head names the chunks too, where the index was evicted; one that is damaged names what it can
if is_head then pcall(list, redis.call('HGET', KEYS[1], 'manifest') or '') end
for _, key in ipairs(listed) do
    -- of this session only, whatever stands in the index
    if string.sub(key, 1, #prefix) == prefix then redis.call('UNLINK', key) end
end
redis.call('UNLINK', KEYS[1], KEYS[2])
return 1
"""
"""Remove everything that is stored for a session, chunks not yet published included."""
