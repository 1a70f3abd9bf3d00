"""The account's steps that must be atomic on the server: sizes, last uses and sums change together."""

_BEGIN = """
-- KEYS: last (sorted set: session -> when it expires), sizes (hash: session -> "bytes:tenant"), sums (hash)
local now = redis.call('TIME')
now = now[1] + now[2] / 1000000
-- what is not of the type it was made with is begun anew: a repair fills it
for i, type in ipairs({'zset', 'hash', 'hash'}) do
    local found = redis.call('TYPE', KEYS[i]).ok
    if found ~= type and found ~= 'none' then redis.call('UNLINK', KEYS[i]) end
end
local function entry(session)
    local bytes, tenant = string.match(redis.call('HGET', KEYS[2], session) or '', '^(%d+):(.*)$')
    return tonumber(bytes) or 0, tenant
end
local function sum(name) return tonumber(redis.call('HGET', KEYS[3], name)) or 0 end
local function add(bytes, tenant)
    for _, name in ipairs({'all', 't:' .. tenant}) do
        local total = sum(name) + bytes
        if total > 0 then redis.call('HSET', KEYS[3], name, string.format('%.0f', total))
        else redis.call('HDEL', KEYS[3], name) end
    end
end
local function forget(session)
    local bytes, tenant = entry(session)
    if tenant then add(-bytes, tenant) end
    redis.call('HDEL', KEYS[2], session)
    redis.call('ZREM', KEYS[1], session)
end
local function live(ttl)
    -- the account outlives every session in it
    for i = 1, 3 do
        if redis.call('TTL', KEYS[i]) < ttl + 60 then redis.call('EXPIRE', KEYS[i], ttl + 60) end
    end
end
local function use(session, ttl)
    redis.call('ZADD', KEYS[1], string.format('%.6f', now + ttl), session)
    live(tonumber(ttl))
end
for _, session in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)) do forget(session) end
"""

RECORD = (
    _BEGIN
    + """
-- ARGV: session, tenant, bytes, TTL in seconds, the tenant's quota and that of all, '' for none
forget(ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3] .. ':' .. ARGV[2])
add(tonumber(ARGV[3]), ARGV[2])
use(ARGV[1], ARGV[4])
local chosen, freed = {}, {}
local function choose(over, tenant)
    if over <= 0 then return end
    for _, session in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
        local bytes, owner = entry(session)
        if session ~= ARGV[1] and not freed[session] and (tenant == nil or owner == tenant) then
            freed[session] = bytes
            chosen[#chosen + 1] = session
            chosen[#chosen + 1] = redis.call('ZSCORE', KEYS[1], session)
            over = over - bytes
            if over <= 0 then return end
        end
    end
end
if ARGV[5] ~= '' then choose(sum('t:' .. ARGV[2]) - ARGV[5], ARGV[2]) end
local chosen_bytes = 0
for _, bytes in pairs(freed) do chosen_bytes = chosen_bytes + bytes end
if ARGV[6] ~= '' then choose(sum('all') - chosen_bytes - ARGV[6], nil) end
return chosen
"""
)
"""Note a session's size and use. Returns the sessions beyond a quota, oldest use first, each with its score."""

TOUCH = (
    _BEGIN
    + """
-- ARGV: session, TTL in seconds
if redis.call('ZSCORE', KEYS[1], ARGV[1]) then use(ARGV[1], ARGV[2]) end
return 1
"""
)
"""Note that a session was used."""

FORGET = (
    _BEGIN
    + """
-- ARGV: session, then the only score to forget it with, or ''
if ARGV[2] == '' or redis.call('ZSCORE', KEYS[1], ARGV[1]) == ARGV[2] then forget(ARGV[1]) end
return 1
"""
)
"""Take a session out, unless it was used meanwhile."""

HELD = _BEGIN + "return sum('all')"
"""Bytes of all sessions that have not expired."""

REPAIR = (
    _BEGIN
    + """
-- ARGV: for each session its name, its entry as read before ('' for none), its true entry ('' for none), its TTL
for i = 1, #ARGV, 4 do
    -- what changed meanwhile is newer than what was found
    if (redis.call('HGET', KEYS[2], ARGV[i]) or '') == ARGV[i + 1] then
        forget(ARGV[i])
        if ARGV[i + 2] ~= '' then
            redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 2])
            use(ARGV[i], ARGV[i + 3])
        end
    end
end
redis.call('DEL', KEYS[3])
for _, session in ipairs(redis.call('HKEYS', KEYS[2])) do
    local bytes, tenant = entry(session)
    if tenant then add(bytes, tenant) end
end
live(redis.call('TTL', KEYS[1]) - 60)
return sum('all')
"""
)
"""Correct entries, unless they changed meanwhile, and sum up anew."""
